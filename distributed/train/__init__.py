"""The training step, boostr's trainers and the train command. It imports `comm` and `job`; `parallel` and `mirrors`
import it."""

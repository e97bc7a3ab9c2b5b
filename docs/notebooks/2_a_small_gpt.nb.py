# %% [markdown]
# # A small GPT
#
# A transformer that learns to count in words, on one core, in seconds. First the text and its characters:

# %%
import minigrad
from minigrad.data import CharTokenizer, DataLoader, TensorDataset
from minigrad.models import GPT2, GPT2Config
from minigrad.optim import AdamW

minigrad.manual_seed(0)
words = "one two three four five six seven eight nine ten "
text = words * 40
tokenizer = CharTokenizer.from_text(text)
tokens = minigrad.tensor(tokenizer.encode(text))
tokenizer.vocab_size, tokens[:10]

# %% [markdown]
# Rows of 33 tokens: the model sees 32 and predicts the one behind each.

# %%
T = 32
rows = minigrad.stack([tokens[i : i + T + 1] for i in range(0, len(tokens) - T, 5)])
loader = DataLoader(TensorDataset(rows[:, :-1], rows[:, 1:]), batch_size=16, shuffle=True)
model = GPT2(GPT2Config(vocab_size=tokenizer.vocab_size, block_size=T, n_layer=2, n_head=2, n_embd=32))
sum(p.numel() for p in model.parameters())

# %%
optimizer = AdamW(model.parameters(), lr=1e-2)
losses = []
for _ in range(12):
    for inputs, targets in loader:
        loss = model.loss(inputs, targets)
        optimizer.step(loss.backward())
        losses.append(loss.item())

assert losses[-1] < 0.5 < losses[0]
print(f"{len(losses)} steps: {losses[0]:.2f} -> {losses[-1]:.2f}")

# %% [markdown]
# What it says, always with the most likely character:

# %%
start = minigrad.tensor([tokenizer.encode("six ")])
said = tokenizer.decode(model.generate(start, 24, temperature=0)[0].tolist())
assert said.startswith("six seven eight")
said

# %% [markdown]
# The same on a text of your own, with checkpoints, a page to watch and samples: `minigrad train --help`.

"""Matrix products: the problem, the engines, the choice between them. matmul, linear and attention import it."""

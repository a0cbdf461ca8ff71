"""The paper's printed numbers, quoted beside ours."""

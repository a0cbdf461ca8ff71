"""For authors of methods: compatibility with models, parity with official codes, a skeleton."""

"""For authors of methods: parity with official codes, a skeleton."""

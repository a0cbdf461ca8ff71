"""Small sets in the layout of real benchmarks, made from the embedded images."""

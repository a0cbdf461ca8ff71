"""`python -m ctta_bench` is the command `ctta-bench`."""

from ctta_bench.cli import main

if __name__ == "__main__":
    main()

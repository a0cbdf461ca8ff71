"""What a run leaves on disk: names of files, schema, owner, folder."""

from ctta_bench.names import late

__getattr__ = late(__name__, "folder")  # as in 0.1.0

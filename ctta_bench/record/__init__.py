"""What a run leaves on disk: names of files, schema, owner, folder."""

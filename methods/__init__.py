"""One file per method; presets/ holds their hyper-parameters."""

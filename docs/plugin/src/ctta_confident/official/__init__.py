"""Translations of recorded settings to hyper-parameters."""

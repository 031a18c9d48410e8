"""Encodings that several definitions share, or none has. One of a single definition is in the definition's file."""

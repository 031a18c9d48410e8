"""Terms that several definitions share. A term of one definition is in the definition's file."""

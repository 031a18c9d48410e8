"""Measurements of the verifier: mutants killed, diagnoses, false alarms, published claims, and its cost.

This is the top layer: it may import everything except `cli`.
"""

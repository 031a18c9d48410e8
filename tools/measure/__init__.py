"""What verifies the verifier: how many mutants it kills, how well it names faults, whether it raises false alarms,
which published claims hold, and what it costs. This is the top layer: it may import everything except `cli`."""

"""Loads the suite's plugins, nothing else."""

pytest_plugins = ["harness.plugin", "reports.plugin", "random_graph.plugin"]

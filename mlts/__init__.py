"""Real models and real data: latency and accuracy of a driver against LiteRT on the CPU."""

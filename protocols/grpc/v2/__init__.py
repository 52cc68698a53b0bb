"""Generated from ``definition.proto`` and ``service.proto`` by ``make proto``; not edited."""

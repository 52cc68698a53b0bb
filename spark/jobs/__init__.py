"""Ready-made jobs: ``tidegate spark JOB`` or ``spark-submit``."""

"""A run under watch: training, monitors, interventions and faults."""

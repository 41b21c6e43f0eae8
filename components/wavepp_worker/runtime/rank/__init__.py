"""One pipeline rank: a process with a WAVE thread (admission) and a LOOP thread (execution)."""

"""What happens: the walk of a job, one verb per file. Reading order: submit, decide, dispatch, execute, record, recover."""

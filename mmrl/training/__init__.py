"""One iteration: rollouts, minibatches, the update, held-out evaluation, checkpoints, processes."""

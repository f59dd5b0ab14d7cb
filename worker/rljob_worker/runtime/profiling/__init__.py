"""Steps that are looked at closely, `training.profile`: RUN/profile/step-N/."""

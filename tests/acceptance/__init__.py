"""The driving model's acceptance: many drives in closed loop, judged by gates."""

"""A daemon that is disturbed at random for as long as told, and must keep its promises."""

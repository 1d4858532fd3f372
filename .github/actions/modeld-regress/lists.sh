# For the steps of action.yml: inputs that are lists, one item a line.

lines() {  # TEXT: its lines without blanks around them; empty ones are left out
  sed 's/^[[:space:]]*//; s/[[:space:]]*$//; /^$/d' <<< "$1"
}

paths() {  # TEXT: the same with * and ? expanded; what fits nothing stays, and modeld says so
  local line
  while IFS= read -r line; do compgen -G "$line" || echo "$line"; done < <(lines "$1")
}

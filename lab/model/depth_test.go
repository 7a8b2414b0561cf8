package model

import "github.com/onceward/onceward/internal/nightly"

// depth is how many attempts the larger searches go through. One attempt fewer is a tenth of the states.
var depth = nightly.Either[int8](4, 3)

package mutant

import "slices"

// The stores by name.
const (
	sqlite   = "sqlite"
	postgres = "postgres"
)

// All are the mutants, layer by layer.
var All = slices.Concat(engine, janitors, stores, upper)

package mutant

import "slices"

// The stores by name.
const (
	sqlite   = "sqlite"
	postgres = "postgres"
	redis    = "redis"
	tiered   = "tiered"
)

// All are the mutants, layer by layer.
var All = slices.Concat(engine, janitors, stores, caches, upper)

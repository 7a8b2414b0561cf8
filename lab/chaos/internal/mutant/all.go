package mutant

import "slices"

// The stores by name.
const (
	sqlite   = "sqlite"
	postgres = "postgres"
	redis    = "redis"
	tiered   = "tiered"
	mysql    = "mysql"
	galera   = "galera"
	dynamodb = "dynamodb"
)

// All are the mutants, layer by layer.
var All = slices.Concat(engine, janitors, stores, caches, fleets, upper)

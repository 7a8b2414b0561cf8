//go:build !race

package model

// depth is how many attempts the larger searches go through.
const depth = 4

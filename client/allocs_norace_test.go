//go:build !race

package client_test

// mostAllocs is what an operation may allocate beside a plain call.
const mostAllocs = 6

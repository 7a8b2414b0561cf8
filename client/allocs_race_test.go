//go:build race

package client_test

// mostAllocs is what an operation may allocate beside a plain call: more under the race detector, which keeps on the
// heap what is on the stack without it.
const mostAllocs = 9

//go:build !race

package onceward_test

// What is allocated beside the request itself, as it was before there were events of store calls.
const firstAllocs, replayAllocs, doAllocs, serveAllocs = 20, 8, 7, 4

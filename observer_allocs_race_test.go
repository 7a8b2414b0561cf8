//go:build race

package onceward_test

// What is allocated beside the request itself: more under the race detector, which drops what is kept in pools now and
// then.
const firstAllocs, replayAllocs, doAllocs, serveAllocs = 29, 14, 11, 8

// Package model walks all interleavings of a few actors over [github.com/onceward/onceward/store.Step] and holds every
// state it meets against the invariants of docs/reliability.md. It has no code of its own: the search, the actors, the
// invariants and the deliberately broken variants are its tests.
//
// The actors are requests with their owners (in reserved or in transactional mode), the provider, the sweeper, the
// reaper, the reconciler, an operator and the clock. Each may stop for ever at every point, and any other may go on
// instead: a pause of any length, a crash and a lost message are all part of the walk.
package model

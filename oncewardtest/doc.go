// Package oncewardtest tests handlers: it shows what retries, crashes and lost replies do to them.
//
// [Check] tests a route: it sends a request through duplicates, crashes, lost replies and failures, at every call that
// the guard makes to its store and the handler to its [Provider]. It reports what ran twice, what was lost, and what
// was called without the right key, with the history that led to it.
//
//	func shop(t oncewardtest.TestingT) oncewardtest.Config {
//		store, clock := oncewardtest.NewStore(t, `CREATE TABLE payment (amount INTEGER NOT NULL)`)
//		return oncewardtest.Config{
//			Store: store, Clock: clock,
//			Service: newService,                              // func(guard *onceward.Guard) http.Handler
//			Effects: oncewardtest.Rows(store.DB(), "payment"), // what must happen once
//		}
//	}
//
//	func TestShop(t *testing.T) {
//		oncewardtest.Check(t, shop, oncewardtest.Post("/payments", `{"amount": 1200}`))
//	}
//
// A [Kit] is for tests of a single sequence of events: it sends requests to the same service, moves the clock, ends the
// process and starts the next one, and makes the store fail by its [Faults].
package oncewardtest

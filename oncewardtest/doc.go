// Package oncewardtest is for those who test their own handlers: what retries, crashes and lost replies do to them.
//
// [Check] asks the question that matters of a route: it sends a request through duplicates, crashes, lost replies and
// failures at every call that the guard makes to its store and the handler to its [Provider], and reports what ran
// twice, what was lost, and what was called without the right key, with the history that shows it.
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
// A [Kit] is for tests that tell one story: it sends requests to the same service, moves the clock, ends the process
// and starts the next one, and makes the store fail by its [Faults].
package oncewardtest

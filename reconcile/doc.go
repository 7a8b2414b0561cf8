// Package reconcile settles what is unknown: operations of which nobody knows whether they took effect, because their
// owner died, or because the system that it called did not answer (B3).
//
//	poller, err := reconcile.NewPoller(guard, store, reconcile.Config{Rules: map[string]reconcile.Rule{
//		"POST /transfers": {Resolver: reconcile.ResolverFunc(askTheBank), Deduplicates: true},
//	}})
//	go poller.Run(ctx)
//
// A [Poller] asks a [Resolver], which usually asks the other system by the downstream key, again and again with longer
// pauses, until there is an answer or a limit is reached. Then the record is a dead letter, and waits for a person, who
// works at a [Operator]. Package webhook receives what the other system says by itself, and feeds the same door;
// package ledger compares both sides' books.
//
// Of a phased operation, a step is settled and not the whole of it: the operation goes on from there. See [Step].
//
// That the other system does not know of an operation proves little: the request may still be on its way, or its owner
// may be asleep and about to send it. See [Rule] on when it counts.
package reconcile

// Package phase runs an operation as a list of named steps, each with a recovery point behind it. After a crash a later
// attempt goes on behind the last finished step, and does not repeat it (E3).
//
//	var book = phase.Must(phase.New(phase.Definition[Booking]{
//		Name: "POST /bookings",
//		Steps: []phase.Step[Booking]{
//			phase.Local("hold the seat", holdSeat),
//			phase.External("charge", charge).Repeat(),
//			phase.Local("confirm", confirm),
//		},
//		Answer: func(b *Booking) phase.Answer { return phase.JSON(http.StatusCreated, b) },
//	}))
//
//	mux.Handle("POST /bookings", book.Handler(guard, readBooking))
//	resumer, err := phase.NewResumer(guard, store, phase.ResumerConfig{}, book)
//	go resumer.Run(ctx)
//
// A local step is a function that writes to the database through the transaction of its context; what it wrote, what it
// changed in the carried data, and its recovery point are committed together. On a store without transactions a local
// step that was interrupted runs again.
//
// An external step is one call to another system. That it is about to be made is recorded before, and its result after.
// It is handed a key that is the same in every attempt, to send along. If an attempt is lost in between, it is not
// known whether the call was made. The author of the step says what is to be done then: make it again with the same
// key, which the other system must recognise; look first; or, if nothing is said, stop as unknown, for a reconciler or
// a person. They settle the step, and the operation goes on behind it or at it: see [Operation.InDoubt] and [Inspect].
//
// The carried data is all that a later attempt has: it is stored as JSON, and the steps see nothing else of the
// request. It is decoded strictly, and a node leaves an operation alone whose steps or data it does not know: see
// [Definition] and [*ChangedError].
package phase

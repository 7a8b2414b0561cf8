// Package payments is the reference system: a payments API with all that a service which handles money needs around it.
// It is written to be copied.
//
//   - POST /payments is transactional: the payment, the order to charge it and the stored answer are one transaction. A
//     worker charges afterwards, with a key that the provider recognises.
//   - POST /payments/{id}/refund calls the provider inline. If the provider does not answer the outcome is unknown,
//     until its webhook tells, or a poller has asked.
//   - POST /bookings has three phases: reserve, charge, confirm. What a crash interrupts goes on where it stopped.
//
// Each file tells one of these stories; system.go puts them together.
package payments

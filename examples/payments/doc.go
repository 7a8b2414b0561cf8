// Package payments is the reference system: a payments API with everything that a service for money needs. It is
// written to be copied.
//
//   - POST /payments is transactional: the payment, the order to charge it and the stored answer are one transaction. A
//     worker charges afterwards, with a key that the provider recognises.
//   - POST /payments/{id}/refund calls the provider inline. If the provider does not answer, the outcome is unknown
//     until its webhook arrives or a poller has asked.
//   - POST /bookings has three phases: reserve, charge, confirm. After a crash, it continues where it stopped.
//
// Each file covers one of these topics; system.go assembles them.
package payments

-- name: CreatePayment :exec
INSERT INTO payment (id, amount) VALUES ($1, $2);

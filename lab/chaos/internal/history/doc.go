// Package history holds what a chaos run leaves behind: what the clients asked and were told, what the nodes wrote to
// their store, and what the store, the business tables and the provider's books hold when all is quiet.
//
// Every process of a run appends to a file of its own, one line of JSON a fact and one write(2) a line, so that kill -9
// loses at most the line that was being written. What is found in the end is written by [Save], and [Read] puts the
// files together again for the checker.
package history

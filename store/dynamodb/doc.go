// Package dynamodb keeps records in a table of Amazon DynamoDB.
package dynamodb

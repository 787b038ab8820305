-- Log lines while a session was open, open ones until the end of the year.
SELECT s.id, l.line
FROM sessions s
JOIN log l ON l.s = s.s AND l.at::timestamp BETWEEN s.started AND coalesce(s.ended, TIMESTAMP '2015-12-31')
WHERE s.id % 10 = 0

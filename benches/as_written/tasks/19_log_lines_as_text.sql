-- Log lines of each session, whose times are text.
SELECT s.id, count(l.line) AS lines
FROM sessions s
JOIN log l ON l.s = s.s AND l.at::timestamp BETWEEN s.started AND s.ended
GROUP BY s.id

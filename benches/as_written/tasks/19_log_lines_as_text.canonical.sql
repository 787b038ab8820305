-- Log lines of each session, whose times are text.
SELECT s.id, count(l.line) AS lines
FROM sessions s
JOIN (SELECT s, line, arrow_cast(at, 'Timestamp(µs)') AS moment FROM log) l ON l.s = s.s AND l.moment BETWEEN s.started AND s.ended
GROUP BY s.id

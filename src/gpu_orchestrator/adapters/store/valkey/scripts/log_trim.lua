#!lua flags=allow-oom
-- Forget logs that have expired with their tasks, and drop those beyond the bound of all logs.
-- Arguments: most bytes of all logs, last write before this many ms, how many of those to skip, most to look at
-- Answers {looked at, forgotten}
local most_of_all, before, skip, most = ARG[1], NOW - ARG[2], ARG[3], ARG[4]
local ids = redis.call('ZRANGEBYSCORE', P .. 'logs', '-inf', before, 'LIMIT', skip, most)
local forgotten = 0
for _, id in ipairs(ids) do
  if redis.call('EXISTS', P .. 'log:' .. id) == 0 then
    forget_log(id)
    forgotten = forgotten + 1
  end
end
drop_logs(most_of_all)
return cmsgpack.pack({{}, {#ids, forgotten}})

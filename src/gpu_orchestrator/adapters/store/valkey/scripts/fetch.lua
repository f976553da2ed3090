-- Read rows of tasks and workers.
-- Arguments: task ids, worker names, 1 to include the tasks' parameters: they may be large, and reading a thousand of
--   them would block all other clients
-- Answers {now, tasks {field, value, ...} each, workers {lease, active, field, value, ...} each}; {} for a missing row
local tasks, workers = {}, {}
local function without_params(key)
  local fields, row = {}, {}
  for _, field in ipairs(redis.call('HKEYS', key)) do
    if field ~= 'params' then fields[#fields + 1] = field end
  end
  for at, value in ipairs(#fields > 0 and redis.call('HMGET', key, unpack(fields)) or {}) do
    row[#row + 1] = fields[at]
    row[#row + 1] = value
  end
  return row
end
for number, id in ipairs(ARG[1]) do
  local key = P .. 't:' .. id
  tasks[number] = ARG[3] == 1 and redis.call('HGETALL', key) or without_params(key)
end
for number, name in ipairs(ARG[2]) do workers[number] = worker_row(name) end
return cmsgpack.pack({{}, {NOW, tasks, workers}})
